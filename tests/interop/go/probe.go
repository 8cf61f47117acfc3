// Command probe uses the official Go client with credentials: one case per line of standard input, as JSON,
// and one outcome per line of standard output. The Python test that started it judges.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"
)

type probeCase struct {
	URL          string            `json:"url"`
	Trust        string            `json:"trust"`
	Method       string            `json:"method"`
	Params       map[string]string `json:"params"`
	Topic        string            `json:"topic"`
	Subscription string            `json:"subscription"`
	Seconds      float64           `json:"seconds"`
	TimeoutS     int               `json:"timeout_s"`
}

type outcome struct {
	Received int    `json:"received"`
	Error    string `json:"error"`
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var one probeCase
		if err := json.Unmarshal(lines.Bytes(), &one); err != nil {
			panic(err)
		}
		received, err := exchange(one)
		text := ""
		if err != nil {
			text = err.Error()
		}
		answer, _ := json.Marshal(outcome{Received: received, Error: text})
		fmt.Println(string(answer))
	}
}

func credentials(one probeCase) (pulsar.Authentication, error) {
	params := one.Params
	switch one.Method {
	case "none":
		return nil, nil
	case "token":
		return pulsar.NewAuthenticationTokenFromFile(params["file"]), nil
	case "tls":
		return pulsar.NewAuthenticationTLS(params["certificate"], params["key"]), nil
	case "basic":
		return pulsar.NewAuthenticationBasic(params["user"], params["password"])
	case "oauth2":
		return pulsar.NewAuthenticationOAuth2(map[string]string{
			"type":       "client_credentials",
			"issuerUrl":  params["issuer"],
			"audience":   params["audience"],
			"privateKey": params["key_file"],
		}), nil
	}
	return nil, fmt.Errorf("no such method: %s", one.Method)
}

// exchange sends and receives until the seconds of the case are over, at least ten messages.
func exchange(one probeCase) (int, error) {
	auth, err := credentials(one)
	if err != nil {
		return 0, err
	}
	timeout := time.Duration(one.TimeoutS) * time.Second
	client, err := pulsar.NewClient(pulsar.ClientOptions{
		URL:                   one.URL,
		Authentication:        auth,
		TLSTrustCertsFilePath: one.Trust,
		TLSValidateHostname:   true,
		OperationTimeout:      timeout,
		ConnectionTimeout:     timeout,
		Logger:                log.NewLoggerWithSlog(slog.New(slog.DiscardHandler)),
	})
	if err != nil {
		return 0, err
	}
	defer client.Close()
	consumer, err := client.Subscribe(pulsar.ConsumerOptions{
		Topic: one.Topic, SubscriptionName: one.Subscription, Type: pulsar.Shared,
	})
	if err != nil {
		return 0, err
	}
	defer consumer.Close()
	producer, err := client.CreateProducer(pulsar.ProducerOptions{Topic: one.Topic, SendTimeout: timeout})
	if err != nil {
		return 0, err
	}
	defer producer.Close()
	received := 0
	end := time.Now().Add(time.Duration(one.Seconds * float64(time.Second)))
	for received < 10 || time.Now().Before(end) {
		if err := oneMessage(producer, consumer, timeout); err != nil {
			return received, err
		}
		received++
		if one.Seconds > 0 {
			time.Sleep(100 * time.Millisecond)
		}
	}
	return received, nil
}

func oneMessage(producer pulsar.Producer, consumer pulsar.Consumer, timeout time.Duration) error {
	soon, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	if _, err := producer.Send(soon, &pulsar.ProducerMessage{Payload: []byte("value"), Key: "key"}); err != nil {
		return err
	}
	message, err := consumer.Receive(soon)
	if err != nil {
		return err
	}
	return consumer.Ack(message)
}
