"""What an executor and a scheduler agree on: messages, shared memory, the words of a step."""
