// Command acmesolver is what cert-manager puts into a pod to answer one HTTP-01 challenge: its public solver
// with the flags that cert-manager starts it with.
package main

import (
	"context"
	"flag"
	"log"
	"os/signal"
	"syscall"

	"k8s.io/klog/v2"

	"github.com/cert-manager/cert-manager/pkg/issuer/acme/http/solver"
)

func main() {
	var answer solver.HTTP01Solver
	flag.IntVar(&answer.ListenPort, "listen-port", 8089, "port to listen on")
	flag.StringVar(&answer.Domain, "domain", "", "name that is validated")
	flag.StringVar(&answer.Token, "token", "", "token of the challenge")
	flag.StringVar(&answer.Key, "key", "", "key authorization of the challenge")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	failed := make(chan error, 1)
	go func() { failed <- answer.Listen(klog.NewKlogr()) }()
	select {
	case err := <-failed:
		log.Fatal(err)
	case <-ctx.Done():
	}
}
