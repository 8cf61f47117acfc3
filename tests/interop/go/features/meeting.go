package main

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/crypto"
)

// ask waits until the other side has done something.
func (t *trial) ask(what string) {
	say(answer{Ask: what})
	check(t.lines.Scan(), "the other side has done it: "+what)
}

// exchange sends encrypted messages to another client, and reads those that it encrypts.
func exchange(t *trial) {
	keys := crypto.NewFileKeyReader(t.Public, t.Private)
	large := bytes.Repeat([]byte("0123456789abcdef"), 6<<16)
	secret := func(o *pulsar.ProducerOptions) {
		o.Topic, o.CompressionType = t.Topic+"-theirs", pulsar.LZ4
		o.Encryption = &pulsar.ProducerEncryptionInfo{KeyReader: keys, Keys: []string{"app"}}
	}
	batched := t.producer(secret, func(o *pulsar.ProducerOptions) {
		o.DisableBatching, o.BatchingMaxPublishDelay = false, 50*time.Millisecond
	})
	for number := range 30 {
		message := &pulsar.ProducerMessage{Key: "k", Payload: []byte(fmt.Sprint("value-", number))}
		batched.SendAsync(context.Background(), message, func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) { must(err) })
	}
	must(batched.Flush())
	chunked := t.producer(secret, func(o *pulsar.ProducerOptions) { o.EnableChunking = true })
	sendOne(chunked, &pulsar.ProducerMessage{Key: "k", Payload: large})
	t.ask("exchange")
	consumer := t.subscribe("s", pulsar.Exclusive, func(o *pulsar.ConsumerOptions) {
		o.Topic = t.Topic + "-ours"
		o.Decryption = &pulsar.MessageDecryptionInfo{KeyReader: keys}
	})
	for number := range 30 {
		message := receive(consumer)
		found := message.Key() + string(message.Payload())
		check(found == fmt.Sprint("kvalue-", number), "our message", number, found)
	}
	check(bytes.Equal(large, receive(consumer).Payload()), "our chunks")
}

// workers loses each of two workers once, while the other serves.
func workers(t *trial) {
	consumer := t.subscribe("s", pulsar.Shared)
	producer := t.producer()
	send(producer, "a")
	t.ask("lose worker 0")
	send(producer, "b")
	t.ask("lose worker 1")
	send(producer, "c")
	takeAll(consumer, "a", "b", "c")
}

// takeAll receives until each value came; after the loss of a connection some may come twice.
func takeAll(consumer pulsar.Consumer, values ...string) {
	missing := map[string]bool{}
	for _, value := range values {
		missing[value] = true
	}
	for len(missing) > 0 {
		delete(missing, take(consumer, 1)[0])
	}
}

// transactions are refused at once, with a reason.
func transactions(t *trial) {
	began := time.Now()
	client, err := pulsar.NewClient(pulsar.ClientOptions{URL: t.URL, EnableTransaction: true, OperationTimeout: patience})
	if err == nil {
		defer client.Close()
		_, err = client.NewTransaction(time.Minute)
	}
	check(err != nil, "an error", "none came")
	check(strings.Contains(strings.ToLower(err.Error()), "transaction"), "an error that names transactions", err)
	check(time.Since(began) < patience/2, "an answer at once", time.Since(began))
}
