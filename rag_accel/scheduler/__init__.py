"""What runs when: a pure state machine, and the driver that carries out what it decides."""
