"""The port to what holds the messages of topics, and the adapter for the stores of this broker's cluster."""
