"""Orders of a topic: cleaned, kept as a table, and summed up per minute and customer into another topic.

Each flow resumes from its own checkpoint, so a run processes the messages that arrived since the last one.
Broker and topics come from the environment, so that the project runs unchanged anywhere.
"""

from __future__ import annotations

import os
from typing import Any

from pyspark import pipelines as dp
from pyspark.sql import SparkSession
from pyspark.sql import functions as sql

URL = os.environ.get("ANABRANCH_URL", "pulsar://127.0.0.1:6650")
ORDERS = os.environ.get("ORDERS_TOPIC", "orders")
TOTALS = os.environ.get("TOTALS_TOPIC", "totals")


def clean() -> Any:
    """Return the orders that parse, without those of tests and without refunds."""
    orders = (
        SparkSession.active()
        .readStream.format("anabranch")
        .option("service.url", URL)
        .option("subscribe", ORDERS)
        .option("startingOffsets", "earliest")
        .option("valueFormat", "json")
        .option("valueSchema", "at timestamp, customer string, amount double")
        .option("badRows", "null")
        .load()
    )
    return orders.select("value.*", "segment", "position").where("amount > 0 AND customer <> 'test'")


@dp.table(comment="Orders that parse, without those of tests and without refunds.")
def cleaned() -> Any:
    return clean()


dp.create_sink("totals_topic", "anabranch", {"service.url": URL, "topic": TOTALS})


@dp.append_flow(target="totals_topic")
def totals() -> Any:
    """Number and sum of the orders of each customer in each minute that is over."""
    # A watermark cannot be set on a table of the pipeline, which does not exist while flows are declared.
    groups = clean().withWatermark("at", "0 seconds").groupBy(sql.window("at", "1 minute"), "customer")
    sums = groups.agg(sql.count("*").alias("orders"), sql.sum("amount").alias("amount"))
    value = sql.to_json(sql.struct(sql.col("window.start").alias("minute"), "orders", "amount"))
    return sums.select(sql.col("customer").alias("key"), value.alias("value"))
