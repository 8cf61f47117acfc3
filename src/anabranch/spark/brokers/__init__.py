"""Topics read through brokers: sessions with Anabranch and Apache Pulsar, and what they keep."""
