"""The methods by which a client proves its role: tokens, passwords and certificates."""
