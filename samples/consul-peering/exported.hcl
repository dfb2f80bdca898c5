Kind = "exported-services"
Name = "default"
Services = [
  {
    Name      = "web"
    Consumers = [{ Peer = "here" }]
  }
]
