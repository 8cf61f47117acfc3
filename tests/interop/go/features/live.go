package main

import (
	"fmt"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/utils"
)

// live sends on a topic that stores nothing: consumers of each type get what they are there for.
func live(t *trial) {
	consumers := []pulsar.Consumer{}
	for _, kind := range []pulsar.SubscriptionType{pulsar.Exclusive, pulsar.Failover, pulsar.Shared, pulsar.KeyShared} {
		consumers = append(consumers, t.subscribe(fmt.Sprint("s", kind), kind))
	}
	producer := t.producer()
	for _, consumer := range consumers {
		check(len(take(drained(consumer, producer), 5)) == 5, "all messages")
	}
	late := t.subscribe("late", pulsar.Exclusive)
	send(producer, "after")
	check(sorted(take(late, 1)) == "[after]", "only what comes after the subscription")
	name, err := utils.GetTopicName(t.Topic)
	must(err)
	stats, err := t.admin().Topics().GetStats(*name)
	must(err)
	check(len(stats.Subscriptions) == 5, "five subscriptions", stats.Subscriptions)
}

// drained sends five messages once the consumer has taken the earlier ones, and their acknowledgements are grouped.
func drained(consumer pulsar.Consumer, producer pulsar.Producer) pulsar.Consumer {
	for {
		select {
		case message := <-consumer.Chan():
			must(consumer.Ack(message))
		case <-time.After(50 * time.Millisecond):
			send(producer, "a", "b", "c", "d", "e")
			return consumer
		}
	}
}
