"""Lanes of subscriptions by key or bucket: entries of a stuck slot wait here while other slots go on.

Reading, showing, controlling and remembering of waiting entries belongs here. The pure rules are in
`broker/dispatch`.
"""
