"""Commands about topics, their messages, subscriptions, lanes and schemas."""
