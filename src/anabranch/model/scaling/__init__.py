"""Auto-scaling: what is observed, what the policy allows, and which step follows."""
