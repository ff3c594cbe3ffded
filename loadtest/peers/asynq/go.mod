module peer

go 1.22

require github.com/hibiken/asynq v0.26.0
