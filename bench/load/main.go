// Load for the runner, as cheap as a client can be: it shares the machine with what it measures.
//
// One lasting connection to each server, as Porch has it, and the same request again and again until the time is over: by a
// number of callers, each of which waits for its answer, and pauses or not (-callers); or at a rate that no answer slows
// down, as many independent callers make it (-rate). Callers, or calls, take turns with the servers. The request is encoded
// once and answers are never decoded. Prints one JSON object.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
)

const (
	method         = "/evaluator.FunctionEvaluator/EvaluateFunction"
	maxCalls       = 1_000_000
	maxSeconds     = 600
	maxMessageSize = 64 << 20
	maxTimeout     = 2 * time.Minute
	maxOutstanding = 20_000
)

type report struct {
	Calls    int    `json:"calls"`
	Failures int    `json:"failures"`
	Failure  string `json:"failure"`
	// While calls were started; with callers, until the last answer.
	Seconds float64 `json:"seconds"`
	// Of calls that were answered.
	P50        float64 `json:"p50_ms"`
	P99        float64 `json:"p99_ms"`
	CPUSeconds float64 `json:"cpu_seconds"`
	// Answered while calls were started; what was left in line at the end does not count.
	Good       int     `json:"good"`
	Refused    int     `json:"refused"`
	RefusedP50 float64 `json:"refused_p50_ms"`
	RefusedP99 float64 `json:"refused_p99_ms"`
	// Ended by their deadline.
	Late int `json:"late"`
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

// tally is what became of calls.
type tally struct {
	answered []time.Duration
	refused  []time.Duration
	late     int
	good     int
	failures int
	failure  error
}

func (t *tally) fail(err error) {
	t.failures++
	t.failure = err
}

// judge counts a call of a load that is meant to be too much: to be refused, or late, is no failure.
func (t *tally) judge(err error, begin, now, end time.Time) {
	switch status.Code(err) {
	case codes.OK:
		t.answered = append(t.answered, now.Sub(begin))
		if now.Before(end) {
			t.good++
		}
	case codes.DeadlineExceeded:
		t.late++
	case codes.ResourceExhausted:
		if !saysWhenToRetry(err) {
			t.fail(fmt.Errorf("refused without RetryInfo: %w", err))
			return
		}
		t.refused = append(t.refused, now.Sub(begin))
	default:
		t.fail(err)
	}
}

func saysWhenToRetry(err error) bool {
	for _, detail := range status.Convert(err).Details() {
		if _, ok := detail.(*errdetails.RetryInfo); ok {
			return true
		}
	}
	return false
}

func (t *tally) add(other tally) {
	t.answered = append(t.answered, other.answered...)
	t.refused = append(t.refused, other.refused...)
	t.late += other.late
	t.good += other.good
	t.failures += other.failures
	if other.failure != nil {
		t.failure = other.failure
	}
}

func (t *tally) report() report {
	result := report{
		Calls:    len(t.answered) + len(t.refused) + t.late + t.failures,
		Failures: t.failures,
		Good:     t.good,
		Refused:  len(t.refused),
		Late:     t.late,
	}
	if t.failure != nil {
		result.Failure = t.failure.Error()
	}
	result.P50, result.P99 = percentiles(t.answered)
	result.RefusedP50, result.RefusedP99 = percentiles(t.refused)
	return result
}

func percentiles(latencies []time.Duration) (p50, p99 float64) {
	slices.Sort(latencies)
	last := len(latencies) - 1
	if last < 0 {
		return 0, 0
	}
	return latencies[last/2].Seconds() * 1e3, latencies[last*99/100].Seconds() * 1e3
}

// target is who is called, with what.
type target struct {
	connections []*grpc.ClientConn
	request     []byte
	timeout     time.Duration
}

// call goes to one of the servers; turn says to which.
func (t *target) call(turn int, begin time.Time) error {
	ctx, cancel := context.WithDeadline(context.Background(), begin.Add(t.timeout))
	defer cancel()
	var size int
	connection := t.connections[turn%len(t.connections)]
	if err := connection.Invoke(ctx, method, t.request, &size); err != nil {
		return err
	}
	if size == 0 {
		return fmt.Errorf("an empty answer")
	}
	return nil
}

// closed is callers that wait for their answers.
func (t *target) closed(callers int, pause time.Duration, seconds float64) report {
	var group sync.WaitGroup
	var started atomic.Int64
	all := make([]tally, callers)
	begin, cpu := time.Now(), cpuTime()
	end := begin.Add(time.Duration(seconds * float64(time.Second)))
	for i := range all {
		group.Go(func() { t.callUntil(i, end, pause, &started, &all[i]) })
	}
	group.Wait()
	var sum tally
	for _, one := range all {
		sum.add(one)
	}
	result := sum.report()
	result.Seconds, result.CPUSeconds = time.Since(begin).Seconds(), (cpuTime() - cpu).Seconds()
	return result
}

func (t *target) callUntil(turn int, end time.Time, pause time.Duration, started *atomic.Int64, own *tally) {
	for begin := time.Now(); begin.Before(end) && started.Add(1) <= maxCalls; {
		err := t.call(turn, begin)
		now := time.Now()
		if err != nil {
			own.fail(err)
		} else {
			own.answered = append(own.answered, now.Sub(begin))
			if now.Before(end) {
				own.good++
			}
		}
		if pause > 0 {
			time.Sleep(pause)
			now = time.Now()
		}
		begin = now
	}
}

// open starts calls at a rate, whatever comes of them; a call's time counts from when it was due.
func (t *target) open(rate, seconds float64) report {
	var group sync.WaitGroup
	var lock sync.Mutex
	var sum tally
	random := rand.New(rand.NewPCG(1, 2))
	begin, cpu := time.Now(), cpuTime()
	end := begin.Add(time.Duration(seconds * float64(time.Second)))
	due := begin
	for started := 0; due.Before(end) && started < maxCalls; started++ {
		begin := due
		time.Sleep(time.Until(begin))
		group.Go(func() {
			err := t.call(started, begin)
			now := time.Now()
			lock.Lock()
			defer lock.Unlock()
			sum.judge(err, begin, now, end)
		})
		due = due.Add(time.Duration(random.ExpFloat64() / rate * float64(time.Second)))
	}
	group.Wait()
	result := sum.report()
	result.Seconds, result.CPUSeconds = seconds, (cpuTime() - cpu).Seconds()
	return result
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
	rate := flag.Float64("rate", 0, "calls a second, started whether or not others are answered; 0: as fast as callers are answered")
	timeout := flag.Duration("timeout", maxTimeout, "deadline of a call")
	image := flag.String("image", "", "image of the function")
	input := flag.String("input", "", "file with the resource list")
	flag.Parse()
	if *seconds <= 0 || *seconds > maxSeconds || *callers < 1 || *pause < 0 {
		fail(fmt.Errorf("at least one caller, and at most %d seconds", maxSeconds))
	}
	if *timeout <= 0 || *timeout > maxTimeout || *rate < 0 || *rate*timeout.Seconds() > maxOutstanding {
		fail(fmt.Errorf("a timeout of at most %s, and with -rate at most %d calls in that time", maxTimeout, maxOutstanding))
	}
	resourceList, err := os.ReadFile(*input)
	if err != nil {
		fail(err)
	}
	called := &target{request: encode(*image, resourceList), timeout: maxTimeout}
	for turn, address := range strings.Split(*addresses, ",") {
		connection, err := connect(address)
		if err != nil {
			fail(err)
		}
		defer connection.Close()
		called.connections = append(called.connections, connection)
		// The first call pays for the connection, and for whatever is read for the first time.
		if err := called.call(turn, time.Now()); err != nil {
			fail(err)
		}
	}
	called.timeout = *timeout
	var result report
	if *rate > 0 {
		result = called.open(*rate, *seconds)
	} else {
		result = called.closed(*callers, *pause, *seconds)
	}
	if err := json.NewEncoder(os.Stdout).Encode(result); err != nil {
		fail(err)
	}
}
