"""The scheduler: a pure state machine, and the driver that carries out its commands."""
