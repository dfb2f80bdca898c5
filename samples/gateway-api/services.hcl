services {
  name    = "reviews"
  address = "127.0.0.1"
  port    = 9101
  meta    = { protocol = "http", service_port = "9080" }
}

services {
  name    = "reviews-canary"
  address = "127.0.0.1"
  port    = 9102
  meta    = { protocol = "http", service_port = "9080" }
}
