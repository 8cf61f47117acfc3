"""For tests of applications: a broker in the process of the test, and a pytest plugin that starts it."""
