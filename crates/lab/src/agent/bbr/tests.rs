mod none {}
