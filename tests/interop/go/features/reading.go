package main

import (
	"context"
	"fmt"
	"reflect"
	"sync/atomic"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

func types(t *trial) {
	exclusive := t.subscribe("exclusive", pulsar.Exclusive)
	_, err := t.client.Subscribe(pulsar.ConsumerOptions{Topic: t.Topic, SubscriptionName: "exclusive"})
	check(err != nil, "a second exclusive consumer is refused")
	shared := []pulsar.Consumer{t.subscribe("shared", pulsar.Shared), t.subscribe("shared", pulsar.Shared)}
	keyed := []pulsar.Consumer{t.subscribe("keyed", pulsar.KeyShared), t.subscribe("keyed", pulsar.KeyShared)}
	values := []string{}
	for number := range 40 {
		values = append(values, fmt.Sprintf("%02d", number))
	}
	send(t.producer(), values...)
	check(fmt.Sprint(take(exclusive, 40)) == fmt.Sprint(values), "all in order")
	for _, pair := range [][]pulsar.Consumer{shared, keyed} {
		got := []string{}
		for len(got) < 40 {
			for _, consumer := range pair {
				select {
				case message := <-consumer.Chan():
					got = append(got, string(message.Payload()))
					must(consumer.Ack(message))
				case <-time.After(100 * time.Millisecond):
				}
			}
		}
		check(sorted(got) == fmt.Sprint(values), "each message once", got)
	}
}

// listener counts the news of a failover consumer.
type listener struct{ active, inactive atomic.Int32 }

func (l *listener) BecameActive(pulsar.Consumer, string, int32)   { l.active.Add(1) }
func (l *listener) BecameInactive(pulsar.Consumer, string, int32) { l.inactive.Add(1) }

func failover(t *trial) {
	first, second := &listener{}, &listener{}
	named := func(name string, heard *listener) func(*pulsar.ConsumerOptions) {
		return func(o *pulsar.ConsumerOptions) { o.Name, o.EventListener = name, heard }
	}
	active := t.subscribe("s", pulsar.Failover, named("a", first))
	until("the first is active", func() bool { return first.active.Load() == 1 })
	standby := t.subscribe("s", pulsar.Failover, named("b", second))
	until("the second is not", func() bool { return second.inactive.Load() == 1 })
	producer := t.producer()
	send(producer, "1")
	take(active, 1)
	active.Close()
	until("the second takes over", func() bool { return second.active.Load() == 1 })
	send(producer, "2")
	take(standby, 1)
}

func (t *trial) reader(start pulsar.MessageID, inclusive bool) pulsar.Reader {
	reader, err := t.client.CreateReader(pulsar.ReaderOptions{
		Topic: t.Topic, StartMessageID: start, StartMessageIDInclusive: inclusive,
	})
	must(err)
	return reader
}

// restOf reads as long as the reader says that there is more.
func restOf(reader pulsar.Reader) string {
	values := []string{}
	for reader.HasNext() {
		values = append(values, next(reader))
	}
	return fmt.Sprint(values)
}

func next(reader pulsar.Reader) string {
	soon, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	message, err := reader.Next(soon)
	must(err)
	return string(message.Payload())
}

func readers(t *trial) {
	first, late := t.reader(pulsar.EarliestMessageID(), false), t.reader(pulsar.LatestMessageID(), false)
	check(!first.HasNext() && !late.HasNext(), "nothing is there")
	ids := send(t.producer(), "a", "b", "c")
	check(restOf(first) == "[a b c]", "all from the start")
	// Before it has read anything, this client does not say what comes after the latest message.
	check(next(late)+restOf(late) == "a[b c]", "all after the end")
	check(restOf(t.reader(ids[0], false)) == "[b c]", "after a message")
	check(restOf(t.reader(ids[1], true)) == "[b c]", "from a message")
	check(restOf(t.reader(pulsar.LatestMessageID(), false)) == "[]", "the end")
	check(restOf(t.reader(pulsar.LatestMessageID(), true)) == "[c]", "the last one")
	last, err := first.GetLastMessageID()
	must(err)
	check(last.EntryID() == ids[2].EntryID(), "the last id", last)
}

func seek(t *trial) {
	producer := t.producer()
	ids := send(producer, "a", "b")
	time.Sleep(100 * time.Millisecond)
	middle := time.Now()
	time.Sleep(100 * time.Millisecond)
	send(producer, "c", "d")
	reader := t.reader(pulsar.EarliestMessageID(), false)
	consumer := t.subscribe("s", pulsar.Exclusive, func(o *pulsar.ConsumerOptions) { o.StartMessageIDInclusive = true })
	check(restOf(reader) == "[a b c d]", "all")
	check(fmt.Sprint(take(consumer, 4)) == "[a b c d]", "all")
	must(reader.SeekByTime(middle))
	must(consumer.SeekByTime(middle))
	check(restOf(reader) == "[c d]", "from a time")
	check(fmt.Sprint(take(consumer, 2)) == "[c d]", "from a time")
	must(reader.Seek(ids[1]))
	must(consumer.Seek(ids[1]))
	check(restOf(reader) == "[c d]", "after a message")
	check(fmt.Sprint(take(consumer, 3)) == "[b c d]", "from a message")
}

func tableView(t *trial) {
	text := pulsar.NewStringSchema(nil)
	producer := t.producer(func(o *pulsar.ProducerOptions) { o.Schema = text })
	sendOne(producer, &pulsar.ProducerMessage{Key: "a", Payload: []byte("1")})
	sendOne(producer, &pulsar.ProducerMessage{Key: "a", Payload: []byte("2")})
	kind := reflect.TypeOf(new(string))
	options := pulsar.TableViewOptions{Topic: t.Topic, Schema: text, SchemaValueType: kind}
	view, err := t.client.CreateTableView(options)
	must(err)
	shown := func(key, value string) bool {
		found, ok := view.Get(key).(*string)
		return ok && *found == value
	}
	until("the last value", func() bool { return shown("a", "2") })
	sendOne(producer, &pulsar.ProducerMessage{Key: "b", Payload: []byte("3")})
	until("a new key", func() bool { return shown("b", "3") })
}

func pattern(t *trial) {
	consumer := t.subscribe("s", pulsar.Shared, func(o *pulsar.ConsumerOptions) {
		o.Topic, o.TopicsPattern, o.AutoDiscoveryPeriod = "", t.Topic+"-.*", 200*time.Millisecond
	})
	for _, part := range []string{"-one", "-two"} {
		producer := t.producer(func(o *pulsar.ProducerOptions) { o.Topic = t.Topic + part })
		send(producer, part)
	}
	check(sorted(take(consumer, 2)) == "[-one -two]", "both topics")
}
