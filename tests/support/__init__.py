"""What tests share: a runner process, a stock client, a look at processes and descriptors."""
