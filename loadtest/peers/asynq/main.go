// Adds jobs of 100 bytes and works them off, 200 at once, for so many seconds. Prints the number of jobs that were done.
package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
)

func main() {
	seconds, err := strconv.Atoi(os.Args[2])
	if err != nil {
		panic(err)
	}
	redis := asynq.RedisClientOpt{Addr: os.Args[1]}
	server := asynq.NewServer(redis, asynq.Config{Concurrency: 200, LogLevel: asynq.FatalLevel})
	var done atomic.Int64
	jobs := asynq.NewServeMux()
	jobs.HandleFunc("job", func(context.Context, *asynq.Task) error {
		done.Add(1)
		return nil
	})
	if err := server.Start(jobs); err != nil {
		panic(err)
	}
	client := asynq.NewClient(redis)
	payload := bytes.Repeat([]byte("x"), 100)
	end := time.Now().Add(time.Duration(seconds) * time.Second)
	var adders sync.WaitGroup
	for range 200 {
		adders.Add(1)
		go func() {
			defer adders.Done()
			for time.Now().Before(end) {
				if _, err := client.Enqueue(asynq.NewTask("job", payload)); err != nil {
					panic(err)
				}
			}
		}()
	}
	adders.Wait()
	fmt.Println(done.Load())
}
