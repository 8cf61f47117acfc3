"""One broker process: it serves logs to clients, and one cluster of brokers shares all logs.

`wire` takes commands from connections, `cluster` finds the owners of logs and leaders of topics, `catalog`
knows which logs exist here, `serving` serves one log, and `dispatch` decides which consumer gets an entry.
`broker.py` puts the parts of one process together. The broker knows the leader of a topic only through
`controller.ports`, and stored entries only through `ledger.storage`.
"""
