// Command features tries the usual features of the official Go client, a case per line of standard input.
// The answer is a line with the error of the case, or a line with a request, such as to restart the broker.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"sort"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"
)

const patience = 20 * time.Second

// trial is one case: its addresses and names, and a client.
type trial struct {
	Case    string `json:"case"`
	URL     string `json:"url"`
	HTTP    string `json:"http"`
	Topic   string `json:"topic"`
	Public  string `json:"public"`
	Private string `json:"private"`
	client  pulsar.Client
	lines   *bufio.Scanner
}

type answer struct {
	Error string `json:"error"`
	Ask   string `json:"ask"`
}

var cases = map[string]func(*trial){
	"types":        types,
	"failover":     failover,
	"readers":      readers,
	"seek":         seek,
	"chunking":     chunking,
	"encryption":   encryption,
	"schemas":      schemas,
	"bytes":        bytesSchema,
	"dead letter":  deadLetter,
	"retry":        retryTopic,
	"table view":   tableView,
	"partitions":   partitions,
	"pattern":      pattern,
	"interceptors": interceptors,
	"batching":     keyBatching,
	"delayed":      delayed,
	"http":         overHTTP,
	"admin":        administer,
	"restart":      restart,
	"workers":      workers,
	"exchange":     exchange,
	"transactions": transactions,
	"live":         live,
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		one := &trial{lines: lines}
		must(json.Unmarshal(lines.Bytes(), one))
		say(answer{Error: one.run()})
	}
}

func say(what answer) {
	text, err := json.Marshal(what)
	must(err)
	fmt.Println(string(text))
}

// run returns the error of a case, which panics when something is not as it must be.
func (t *trial) run() (text string) {
	defer func() {
		if found := recover(); found != nil {
			text = fmt.Sprint(found)
		}
	}()
	t.client = t.connect(t.URL)
	defer t.client.Close()
	cases[t.Case](t)
	return ""
}

func (t *trial) connect(url string) pulsar.Client {
	client, err := pulsar.NewClient(pulsar.ClientOptions{
		URL:              url,
		OperationTimeout: patience,
		Logger:           log.NewLoggerWithSlog(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))),
	})
	must(err)
	return client
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func check(right bool, what string, found ...any) {
	if !right {
		panic(fmt.Sprint("not so: ", what, ", but ", found))
	}
}

func (t *trial) subscribe(name string, kind pulsar.SubscriptionType, change ...func(*pulsar.ConsumerOptions)) pulsar.Consumer {
	options := pulsar.ConsumerOptions{
		Topic: t.Topic, SubscriptionName: name, Type: kind,
		SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
		NackRedeliveryDelay:         50 * time.Millisecond,
	}
	for _, one := range change {
		one(&options)
	}
	consumer, err := t.client.Subscribe(options)
	must(err)
	return consumer
}

func (t *trial) producer(change ...func(*pulsar.ProducerOptions)) pulsar.Producer {
	options := pulsar.ProducerOptions{Topic: t.Topic, DisableBatching: true}
	for _, one := range change {
		one(&options)
	}
	producer, err := t.client.CreateProducer(options)
	must(err)
	return producer
}

func send(producer pulsar.Producer, values ...string) []pulsar.MessageID {
	ids := []pulsar.MessageID{}
	for _, value := range values {
		ids = append(ids, sendOne(producer, &pulsar.ProducerMessage{Payload: []byte(value), Key: value}))
	}
	return ids
}

func sendOne(producer pulsar.Producer, message *pulsar.ProducerMessage) pulsar.MessageID {
	soon, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	id, err := producer.Send(soon, message)
	must(err)
	return id
}

func receive(consumer pulsar.Consumer) pulsar.Message {
	soon, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	message, err := consumer.Receive(soon)
	must(err)
	return message
}

// take receives and acknowledges this many messages.
func take(consumer pulsar.Consumer, count int) []string {
	values := []string{}
	for range count {
		message := receive(consumer)
		must(consumer.Ack(message))
		values = append(values, string(message.Payload()))
	}
	return values
}

func sorted(values []string) string {
	sort.Strings(values)
	return fmt.Sprint(values)
}

// until waits for something that comes soon.
func until(what string, true func() bool) {
	end := time.Now().Add(patience)
	for !true() {
		check(time.Now().Before(end), what, "it did not come")
		time.Sleep(20 * time.Millisecond)
	}
}
