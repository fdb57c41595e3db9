"""One call of a locked task, in the process that runs it. It may import `options`, `core` and `server`."""
