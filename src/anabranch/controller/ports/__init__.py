"""The controller's interfaces to segments and leaders. This package must not know any adapter."""
