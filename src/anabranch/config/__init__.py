"""The settings of a broker: each with its description, default and limits, and the files that set them.

`broker` puts the parts together; `files` reads TOML and Pulsar's broker.conf. Knows nothing of the modules
that use a setting.
"""
