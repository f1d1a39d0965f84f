// A minimal wrapper server in Go, for comparison: the same protocol, one process per call by os/exec, and nothing else.
//
// Messages are passed as bytes, as the wrapper server does it. With -parse every output is parsed as a whole, which is
// how the check for a ResourceList is usually written.
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"gopkg.in/yaml.v3"
)

const maxMessageSize = 64 << 20

type rawCodec struct{}

func (rawCodec) Name() string { return "proto" }

func (rawCodec) Marshal(message any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(message.([]byte))}, nil
}

func (rawCodec) Unmarshal(data mem.BufferSlice, message any) error {
	*message.(*[]byte) = data.Materialize()
	return nil
}

type server struct {
	command []string
	parse   bool
	places  chan struct{}
}

func (s *server) evaluate(ctx context.Context, message []byte) ([]byte, error) {
	input, err := resourceList(message)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	s.places <- struct{}{}
	defer func() { <-s.places }()
	var stdout, stderr bytes.Buffer
	command := exec.CommandContext(ctx, s.command[0], s.command[1:]...)
	command.Stdin, command.Stdout, command.Stderr = bytes.NewReader(input), &stdout, &stderr
	if err := command.Run(); err != nil {
		return nil, status.Errorf(codes.Internal, "%v\n%s", err, stderr.Bytes())
	}
	if s.parse {
		var list struct {
			Kind  string      `yaml:"kind"`
			Items []yaml.Node `yaml:"items"`
		}
		if err := yaml.Unmarshal(stdout.Bytes(), &list); err != nil || list.Kind != "ResourceList" {
			return nil, status.Errorf(codes.Internal, "not a ResourceList: %v", err)
		}
	}
	response := make([]byte, 0, stdout.Len()+stderr.Len()+32)
	response = protowire.AppendTag(response, 1, protowire.BytesType)
	response = protowire.AppendBytes(response, stdout.Bytes())
	response = protowire.AppendTag(response, 2, protowire.BytesType)
	return protowire.AppendBytes(response, stderr.Bytes()), nil
}

func resourceList(message []byte) ([]byte, error) {
	for len(message) > 0 {
		number, kind, length := protowire.ConsumeTag(message)
		if length < 0 || kind != protowire.BytesType {
			return nil, fmt.Errorf("not a request")
		}
		value, size := protowire.ConsumeBytes(message[length:])
		if size < 0 {
			return nil, fmt.Errorf("not a request")
		}
		if number == 1 {
			return value, nil
		}
		message = message[length+size:]
	}
	return nil, nil
}

func handle(service any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
	var message []byte
	if err := decode(&message); err != nil {
		return nil, err
	}
	return service.(*server).evaluate(ctx, message)
}

func main() {
	parse := flag.Bool("parse", false, "parse every output as a whole")
	flag.Parse()
	listener, err := net.Listen("tcp", "localhost:0")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Fprintf(os.Stderr, "event=serving port=%d\n", listener.Addr().(*net.TCPAddr).Port)
	places := make(chan struct{}, max(2, runtime.NumCPU()))
	grpcServer := grpc.NewServer(
		grpc.ForceServerCodecV2(rawCodec{}), grpc.MaxRecvMsgSize(maxMessageSize), grpc.MaxSendMsgSize(maxMessageSize),
	)
	grpcServer.RegisterService(&grpc.ServiceDesc{
		ServiceName: "evaluator.FunctionEvaluator",
		HandlerType: (*any)(nil),
		Methods:     []grpc.MethodDesc{{MethodName: "EvaluateFunction", Handler: handle}},
	}, &server{command: flag.Args(), parse: *parse, places: places})
	if err := grpcServer.Serve(listener); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
