"""Values with a schema: from the bytes of messages to a typed Arrow column, and back."""
