"""From a delivered entry to the application: the stream, queue and checkpoint consumers.

A `SegmentConsumer` reads one segment and gives its entries to the `Inbox` of its topic's consumer. This
package uses `produce` only to send dead letters.
"""
