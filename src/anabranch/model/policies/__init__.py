"""Policies of namespaces and topics: their names and forms, which values apply, and a decision for each.

Pure: plain values in, plain values out. Counts and rates are in `model/policies/quotas.py`.
"""
