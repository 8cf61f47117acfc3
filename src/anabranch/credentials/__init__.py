"""The client's side of authentication: credentials of applications, asked afresh for every use.

Client and admin client share it, and it knows neither of them nor any broker.
"""
