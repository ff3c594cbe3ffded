&[
    "tallystone.queue.v1.QueueService.Dequeue",
]
