// Program redsync counts under redsync's mutex, on one server.
package main

import (
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"

	"windlass-interop/section"
)

func main() {
	work := section.FromArguments()
	options, err := redis.ParseURL(work.URL)
	section.Must(err)
	mutexes := redsync.New(goredis.NewPool(redis.NewClient(options)))
	work.Run("github.com/go-redsync/redsync/v4", func(count func()) {
		mutex := mutexes.NewMutex(work.Name,
			redsync.WithExpiry(30*time.Second),
			redsync.WithTries(20000),
			redsync.WithRetryDelay(2*time.Millisecond))
		section.Must(mutex.Lock())
		count()
		_, err := mutex.Unlock()
		section.Must(err)
	})
}
