Kind = "service-resolver"
Name = "web"
Failover = {
  "*" = {
    Targets = [{ Peer = "west" }]
  }
}
