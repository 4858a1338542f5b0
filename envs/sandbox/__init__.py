"""The inside of the code sandbox: what runs in the child process. Start from `envs.sandbox_code`."""
