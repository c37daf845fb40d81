"""Pure decisions about operations: states, transitions, classification. No await, no clock, no I/O."""
