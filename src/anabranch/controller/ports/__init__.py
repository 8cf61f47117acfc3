"""The interfaces of the controller to segments and leaders; this package must not know any adapter."""
