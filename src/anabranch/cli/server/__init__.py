"""Commands on the machine of a broker: run it, check it, and keep its files and secrets."""
