"""A call of a unique task, in the process that publishes it. It may import `running` and the rooms below."""
