package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/crypto"
	"github.com/apache/pulsar-client-go/pulsaradmin"
	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/rest"
	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/utils"
)

func chunking(t *trial) {
	consumer := t.subscribe("s", pulsar.Shared)
	producer := t.producer(func(o *pulsar.ProducerOptions) { o.EnableChunking = true })
	value := bytes.Repeat([]byte("0123456789abcdef"), 1<<20)
	sendOne(producer, &pulsar.ProducerMessage{Payload: value})
	send(producer, "small")
	large := receive(consumer)
	check(bytes.Equal(large.Payload(), value), "the large message", len(large.Payload()))
	must(consumer.Ack(large))
	check(take(consumer, 1)[0] == "small", "the next message")
}

func encryption(t *trial) {
	keys := crypto.NewFileKeyReader(t.Public, t.Private)
	consumer := t.subscribe("s", pulsar.Exclusive, func(o *pulsar.ConsumerOptions) {
		o.Decryption = &pulsar.MessageDecryptionInfo{KeyReader: keys}
	})
	producer := t.producer(func(o *pulsar.ProducerOptions) {
		o.Encryption = &pulsar.ProducerEncryptionInfo{KeyReader: keys, Keys: []string{"app"}}
	})
	send(producer, "a", "b")
	check(fmt.Sprint(take(consumer, 2)) == "[a b]", "plain values")
}

const before = `{"type":"record","name":"Order","fields":[{"name":"name","type":"string"}]}`
const after = `{"type":"record","name":"Order","fields":[{"name":"name","type":"string"},` +
	`{"name":"colour","type":"string","default":"red"}]}`

type order struct {
	Name   string `json:"name" avro:"name"`
	Colour string `json:"colour" avro:"colour"`
}

func schemas(t *trial) {
	for kind, pair := range map[string][2]pulsar.Schema{
		"json": {pulsar.NewJSONSchema(before, nil), pulsar.NewJSONSchema(after, nil)},
		"avro": {pulsar.NewAvroSchema(before, nil), pulsar.NewAvroSchema(after, nil)},
	} {
		topic := t.Topic + kind
		with := func(schema pulsar.Schema) func(*pulsar.ProducerOptions) {
			return func(o *pulsar.ProducerOptions) { o.Topic, o.Schema = topic, schema }
		}
		sendOne(t.producer(with(pair[0])), &pulsar.ProducerMessage{Value: &order{Name: "a"}})
		sendOne(t.producer(with(pair[1])), &pulsar.ProducerMessage{Value: &order{Name: "b", Colour: "blue"}})
		consumer := t.subscribe("s", pulsar.Shared, func(o *pulsar.ConsumerOptions) { o.Topic, o.Schema = topic, pair[1] })
		for _, name := range []string{"a", "b"} {
			message, found := receive(consumer), order{}
			must(message.GetSchemaValue(&found))
			check(found.Name == name, "the value of "+kind, found)
		}
		_, err := t.client.CreateProducer(pulsar.ProducerOptions{Topic: topic, Schema: pulsar.NewStringSchema(nil)})
		check(err != nil && strings.Contains(err.Error(), "IncompatibleSchema"), "another type is refused", err)
	}
}

func bytesSchema(t *trial) {
	schema := pulsar.NewBytesSchema(nil)
	// This client writes the version into batches only.
	producer := t.producer(func(o *pulsar.ProducerOptions) { o.Schema, o.DisableBatching = schema, false })
	consumer := t.subscribe("s", pulsar.Exclusive, func(o *pulsar.ConsumerOptions) { o.Schema = schema })
	sendOne(producer, &pulsar.ProducerMessage{Value: []byte("a")})
	message, found := receive(consumer), []byte{}
	check(len(message.SchemaVersion()) == 8, "a version", message.SchemaVersion())
	must(message.GetSchemaValue(&found))
	check(string(found) == "a", "the value", found)
}

func deadLetter(t *trial) {
	dead := t.subscribe("look", pulsar.Shared, func(o *pulsar.ConsumerOptions) { o.Topic = t.Topic + "-dead" })
	consumer := t.subscribe("s", pulsar.Shared, func(o *pulsar.ConsumerOptions) {
		o.DLQ = &pulsar.DLQPolicy{MaxDeliveries: 2, DeadLetterTopic: t.Topic + "-dead"}
	})
	send(t.producer(), "bad")
	for range 2 {
		consumer.Nack(receive(consumer))
	}
	check(take(dead, 1)[0] == "bad", "the dead letter")
}

func retryTopic(t *trial) {
	dead := t.subscribe("look", pulsar.Shared, func(o *pulsar.ConsumerOptions) { o.Topic = t.Topic + "-dead" })
	consumer := t.subscribe("s", pulsar.Shared, func(o *pulsar.ConsumerOptions) {
		o.RetryEnable = true
		o.DLQ = &pulsar.DLQPolicy{
			MaxDeliveries: 1, DeadLetterTopic: t.Topic + "-dead", RetryLetterTopic: t.Topic + "-retry",
		}
	})
	send(t.producer(), "bad")
	consumer.ReconsumeLater(receive(consumer), 300*time.Millisecond)
	again := receive(consumer)
	check(again.Properties()["REAL_TOPIC"] == t.Topic, "it comes from the retry topic", again.Properties())
	consumer.ReconsumeLater(again, 100*time.Millisecond)
	check(take(dead, 1)[0] == "bad", "the dead letter")
}

func partitions(t *trial) {
	admin := t.admin()
	name, err := utils.GetTopicName(t.Topic)
	must(err)
	must(admin.Topics().Create(*name, 3))
	names, err := t.client.TopicPartitions(t.Topic)
	must(err)
	check(len(names) == 3, "three partitions", names)
	consumer := t.subscribe("s", pulsar.Shared)
	producer := t.producer()
	for number := range 30 {
		send(producer, fmt.Sprintf("%02d", number))
	}
	check(len(take(consumer, 30)) == 30, "all messages")
	must(admin.Topics().Update(*name, 5))
	info, err := admin.Topics().GetMetadata(*name)
	must(err)
	check(info.Partitions == 5, "two more partitions", info)
}

// counter counts the calls of an interceptor, which marks messages.
type counter struct{ sent, acknowledged atomic.Int32 }

func (c *counter) BeforeSend(_ pulsar.Producer, m *pulsar.ProducerMessage) {
	m.Properties = map[string]string{"marked": "yes"}
}
func (c *counter) OnSendAcknowledgement(pulsar.Producer, *pulsar.ProducerMessage, pulsar.MessageID) {
	c.sent.Add(1)
}
func (c *counter) BeforeConsume(m pulsar.ConsumerMessage)                 {}
func (c *counter) OnAcknowledge(pulsar.Consumer, pulsar.MessageID)        { c.acknowledged.Add(1) }
func (c *counter) OnNegativeAcksSend(pulsar.Consumer, []pulsar.MessageID) {}

func interceptors(t *trial) {
	calls := &counter{}
	consumer := t.subscribe("s", pulsar.Shared, func(o *pulsar.ConsumerOptions) {
		o.Interceptors = pulsar.ConsumerInterceptors{calls}
	})
	send(t.producer(func(o *pulsar.ProducerOptions) { o.Interceptors = pulsar.ProducerInterceptors{calls} }), "a")
	message := receive(consumer)
	check(message.Properties()["marked"] == "yes", "the mark", message.Properties())
	must(consumer.Ack(message))
	until("both calls", func() bool { return calls.sent.Load() == 1 && calls.acknowledged.Load() == 1 })
}

func keyBatching(t *trial) {
	consumers := []pulsar.Consumer{t.subscribe("s", pulsar.KeyShared), t.subscribe("s", pulsar.KeyShared)}
	producer := t.producer(func(o *pulsar.ProducerOptions) {
		o.DisableBatching, o.BatcherBuilderType = false, pulsar.KeyBasedBatchBuilder
		o.BatchingMaxPublishDelay = 50 * time.Millisecond
	})
	for number := range 60 {
		key := fmt.Sprint("key-", number%6)
		message := &pulsar.ProducerMessage{Key: key, Payload: []byte(fmt.Sprint(number))}
		producer.SendAsync(context.Background(), message, func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) { must(err) })
	}
	must(producer.Flush())
	owners, count := map[string]int{}, 0
	for count < 60 {
		for number, consumer := range consumers {
			select {
			case message := <-consumer.Chan():
				owner, known := owners[message.Key()]
				check(!known || owner == number, "one consumer for a key", message.Key())
				owners[message.Key()] = number
				must(consumer.Ack(message))
				count++
			case <-time.After(50 * time.Millisecond):
			}
		}
	}
}

func delayed(t *trial) {
	consumer := t.subscribe("s", pulsar.Shared)
	producer, began := t.producer(), time.Now()
	sendOne(producer, &pulsar.ProducerMessage{Payload: []byte("later"), DeliverAfter: 700 * time.Millisecond})
	send(producer, "now")
	check(fmt.Sprint(take(consumer, 2)) == "[now later]", "the order")
	check(time.Since(began) >= 650*time.Millisecond, "the delay", time.Since(began))
}

func overHTTP(t *trial) {
	t.client.Close()
	t.client = t.connect(t.HTTP)
	consumer := t.subscribe("s", pulsar.Exclusive)
	send(t.producer(), "a")
	check(take(consumer, 1)[0] == "a", "the message")
}

func (t *trial) admin() pulsaradmin.Client {
	admin, err := pulsaradmin.NewClient(&pulsaradmin.Config{WebServiceURL: t.HTTP})
	must(err)
	return admin
}

// conflict checks that something exists already.
func conflict(err error) {
	var failure rest.Error
	check(errors.As(err, &failure) && failure.Code == 409, "a conflict", err)
}

func administer(t *trial) {
	admin := t.admin()
	tenant := strings.ReplaceAll(t.Topic[strings.LastIndex(t.Topic, "/")+1:], ".", "-")
	data := utils.TenantData{Name: tenant, AllowedClusters: []string{"standalone"}}
	must(admin.Tenants().Create(data))
	conflict(admin.Tenants().Create(data))
	must(admin.Namespaces().CreateNamespace(tenant + "/n"))
	conflict(admin.Namespaces().CreateNamespace(tenant + "/n"))
	for number, partitions := range []int{0, 2} {
		name, err := utils.GetTopicName(fmt.Sprintf("persistent://%s/n/t%d", tenant, number))
		must(err)
		must(admin.Topics().CreateWithProperties(*name, partitions, map[string]string{"colour": "red"}))
		conflict(admin.Topics().Create(*name, partitions))
		must(admin.Subscriptions().Create(*name, "s", utils.Earliest))
		conflict(admin.Subscriptions().Create(*name, "s", utils.Latest))
	}
}

func restart(t *trial) {
	consumer := t.subscribe("s", pulsar.Shared)
	producer := t.producer()
	send(producer, "a")
	t.ask("restart")
	send(producer, "b")
	takeAll(consumer, "a", "b")
}
