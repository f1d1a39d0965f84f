// Load for the runner, as cheap as a client can be: it shares the machine with what it measures.
//
// One lasting connection to each server, as Porch has it, and a number of callers that send the same request again and
// again, with or without a pause, until the time is over. Callers are spread over the servers. The request is encoded once
// and answers are never decoded. Prints one JSON object.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

const (
	method         = "/evaluator.FunctionEvaluator/EvaluateFunction"
	maxCalls       = 1_000_000
	maxSeconds     = 600
	maxMessageSize = 64 << 20
	callTimeout    = 2 * time.Minute
)

type report struct {
	Calls      int     `json:"calls"`
	Failures   int     `json:"failures"`
	Failure    string  `json:"failure"`
	Seconds    float64 `json:"seconds"`
	P50        float64 `json:"p50_ms"`
	P99        float64 `json:"p99_ms"`
	CPUSeconds float64 `json:"cpu_seconds"`
}

// rawCodec passes messages as they are; of an answer only the size is kept.
type rawCodec struct{}

func (rawCodec) Name() string { return "proto" }

func (rawCodec) Marshal(message any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(message.([]byte))}, nil
}

func (rawCodec) Unmarshal(data mem.BufferSlice, size any) error {
	*size.(*int) = data.Len()
	return nil
}

type caller struct {
	latencies []time.Duration
	failures  int
	failure   error
}

func (c *caller) run(
	connection *grpc.ClientConn, request []byte, pause time.Duration, end time.Time, started *atomic.Int64,
) {
	for begin := time.Now(); begin.Before(end) && started.Add(1) <= maxCalls; {
		size, err := call(connection, request)
		if err == nil && size == 0 {
			err = fmt.Errorf("an empty answer")
		}
		if err != nil {
			c.failures++
			c.failure = err
		}
		now := time.Now()
		c.latencies = append(c.latencies, now.Sub(begin))
		if pause > 0 {
			time.Sleep(pause)
			now = time.Now()
		}
		begin = now
	}
}

func call(connection *grpc.ClientConn, request []byte) (int, error) {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	var size int
	err := connection.Invoke(ctx, method, request, &size)
	return size, err
}

func connect(address string) (*grpc.ClientConn, error) {
	return grpc.NewClient(
		"passthrough:///"+address,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(
			grpc.ForceCodecV2(rawCodec{}),
			grpc.MaxCallRecvMsgSize(maxMessageSize),
			grpc.MaxCallSendMsgSize(maxMessageSize),
		),
	)
}

func encode(image string, resourceList []byte) []byte {
	message := protowire.AppendTag(nil, 1, protowire.BytesType)
	message = protowire.AppendBytes(message, resourceList)
	message = protowire.AppendTag(message, 2, protowire.BytesType)
	return protowire.AppendString(message, image)
}

func load(connections []*grpc.ClientConn, request []byte, callers int, pause time.Duration, seconds float64) report {
	var group sync.WaitGroup
	var started atomic.Int64
	all := make([]caller, callers)
	begin, cpu := time.Now(), cpuTime()
	end := begin.Add(time.Duration(seconds * float64(time.Second)))
	for i := range all {
		connection := connections[i%len(connections)]
		group.Go(func() { all[i].run(connection, request, pause, end, &started) })
	}
	group.Wait()
	result := report{Seconds: time.Since(begin).Seconds(), CPUSeconds: (cpuTime() - cpu).Seconds()}
	var latencies []time.Duration
	for _, one := range all {
		latencies = append(latencies, one.latencies...)
		result.Failures += one.failures
		if one.failure != nil {
			result.Failure = one.failure.Error()
		}
	}
	slices.Sort(latencies)
	result.Calls = len(latencies)
	if last := len(latencies) - 1; last >= 0 {
		result.P50 = latencies[last/2].Seconds() * 1e3
		result.P99 = latencies[last*99/100].Seconds() * 1e3
	}
	return result
}

func cpuTime() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		fail(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "load:", err)
	os.Exit(1)
}

func main() {
	addresses := flag.String("addresses", "localhost:9445", "of the servers, on this machine, with commas between")
	seconds := flag.Float64("seconds", 1, "how long calls are started")
	callers := flag.Int("callers", 1, "calls at a time")
	pause := flag.Duration("pause", 0, "how long a caller waits between an answer and its next call")
	image := flag.String("image", "", "image of the function")
	input := flag.String("input", "", "file with the resource list")
	flag.Parse()
	if *seconds <= 0 || *seconds > maxSeconds || *callers < 1 || *pause < 0 {
		fail(fmt.Errorf("at least one caller, and at most %d seconds", maxSeconds))
	}
	resourceList, err := os.ReadFile(*input)
	if err != nil {
		fail(err)
	}
	request := encode(*image, resourceList)
	var connections []*grpc.ClientConn
	for _, address := range strings.Split(*addresses, ",") {
		connection, err := connect(address)
		if err != nil {
			fail(err)
		}
		defer connection.Close()
		// The first call pays for the connection, and for whatever is read for the first time.
		if _, err := call(connection, request); err != nil {
			fail(err)
		}
		connections = append(connections, connection)
	}
	if err := json.NewEncoder(os.Stdout).Encode(load(connections, request, *callers, *pause, *seconds)); err != nil {
		fail(err)
	}
}
