"""Every endpoint of the admin API, in rooms by the resource that it is about."""
