// The EST server that tests of signers drive, built by tools/get_signers.py; no part of mesh-pilot. go.sum vouches for
// every module.
module mesh-pilot.invalid/tools/est

go 1.25.0

tool github.com/globalsign/est/cmd/estserver

require (
	github.com/globalsign/est v1.0.6 // indirect
	github.com/globalsign/pemfile v1.0.0 // indirect
	github.com/go-chi/chi v4.1.2+incompatible // indirect
	github.com/google/go-tpm v0.3.2 // indirect
	go.mozilla.org/pkcs7 v0.0.0-20200128120323-432b2356ecb1 // indirect
	golang.org/x/crypto v0.0.0-20200602180216-279210d13fed // indirect
	golang.org/x/sys v0.0.0-20210220050731-9a76102bfb43 // indirect
	golang.org/x/time v0.0.0-20210220033141-f8bda1e9f3ba // indirect
)
