"""The parts of one topic while this broker leads it: change queue, layout changes, subscriptions, scaling.

This package must not know other topics, or how this broker came to lead the topic.
"""
