&[
    ("tallystone.queue.v1.BatchEnqueueRequest.messages", 100),
    ("tallystone.queue.v1.SettleMessagesRequest.items", 100),
]
