"""What `laneway doctor` looks at."""
