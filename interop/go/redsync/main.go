// Program redsync counts under redsync's mutex, on one server, or on several with URLs separated by commas.
package main

import (
	"strings"
	"time"

	"github.com/go-redsync/redsync/v4"
	syncredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"

	"windlass-interop/section"
)

func main() {
	work := section.FromArguments()
	var pools []syncredis.Pool
	for _, url := range strings.Split(work.URL, ",") {
		options, err := redis.ParseURL(url)
		section.Must(err)
		pools = append(pools, goredis.NewPool(redis.NewClient(options)))
	}
	mutexes := redsync.New(pools...)
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
