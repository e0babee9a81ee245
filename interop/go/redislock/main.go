// Program redislock counts under bsm/redislock's lock.
package main

import (
	"context"
	"time"

	"github.com/bsm/redislock"
	"github.com/redis/go-redis/v9"

	"windlass-interop/section"
)

func main() {
	work := section.FromArguments()
	options, err := redis.ParseURL(work.URL)
	section.Must(err)
	locker := redislock.New(redis.NewClient(options))
	ctx := context.Background()
	retry := redislock.LinearBackoff(2 * time.Millisecond)
	work.Run("github.com/bsm/redislock", func(count func()) {
		lock, err := locker.Obtain(ctx, work.Name, 30*time.Second, &redislock.Options{RetryStrategy: retry})
		section.Must(err)
		count()
		section.Must(lock.Release(ctx))
	})
}
