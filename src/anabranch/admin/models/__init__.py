"""The bodies of the admin API as types, which server, clients and the OpenAPI description share.

Names of fields in JSON are Pulsar's. A reader ignores fields that it does not know, and every field of an
answer has a default, so that brokers of another version and of Apache Pulsar can be asked. Pure.
"""
