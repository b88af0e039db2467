-- A market as version 0.1.0 wrote it through sqlx, in SQLite: two gateways and one that left, eight closed
-- slots. Dumped by Python's `iterdump`; PostgreSQL takes the same text.
BEGIN TRANSACTION;
CREATE TABLE event (
    number bigint primary key check (number > 0),
    body text not null
);
INSERT INTO "event" VALUES(1,'{"found":{"terms":{"mode":"float","capacity":40000000,"floor_percent":10},"share":"10000000","cap":"32000000","slot_s":2,"close_before_s":1,"epoch_s":1795770046}}');
INSERT INTO "event" VALUES(2,'{"close":{"slot":0,"root":"3dffe1de077ce3be9a07416d9c7afb907e9c3fc0cefc0a8ad1e359bf5e5cf3dc"}}');
INSERT INTO "event" VALUES(3,'{"close":{"slot":1,"root":"5095e3802ad172bb93d082fc78efa40d9c66c9b446d2b0e0d367a401b8263436"}}');
INSERT INTO "event" VALUES(4,'{"code":{"hash":"0b74131e5137910804d59157a4e7ffc3d69510fcdf4b3dd7c3d3ca58e965bf10","contract":"contract-0","peak":50000000,"until_s":1796029247}}');
INSERT INTO "event" VALUES(5,'{"join":{"hash":"0b74131e5137910804d59157a4e7ffc3d69510fcdf4b3dd7c3d3ca58e965bf10","certificate":"b59e1d36ab1c7f18b8700161745f343b9e4a739bfb85ec1d6b9e36b70b43a781","at_s":1795770047}}');
INSERT INTO "event" VALUES(6,'{"code":{"hash":"57b538a017f6e431ab16b3acafc22d744183d83edcf082fe30cb4f86fd1492af","contract":"contract-1","peak":50000000,"until_s":1796029247}}');
INSERT INTO "event" VALUES(7,'{"join":{"hash":"57b538a017f6e431ab16b3acafc22d744183d83edcf082fe30cb4f86fd1492af","certificate":"fc1b165ebb235b71b9d89a94a9241335bbf9fd94fa5c787113f0d6a0ea2e58e4","at_s":1795770047}}');
INSERT INTO "event" VALUES(8,'{"code":{"hash":"4ca5adef8b01f823a7a34824811d400d2a4594cb1517f333894bfa2f2aab8cd3","contract":"contract-2","peak":50000000,"until_s":1796029247}}');
INSERT INTO "event" VALUES(9,'{"join":{"hash":"4ca5adef8b01f823a7a34824811d400d2a4594cb1517f333894bfa2f2aab8cd3","certificate":"af083bdd43016182babe100d77926e095159d52c0c88b2a7587123f9821b04fa","at_s":1795770047}}');
INSERT INTO "event" VALUES(10,'{"bid":{"gateway":"gw-1","slot":3,"spend":"1000000","sequence":1}}');
INSERT INTO "event" VALUES(11,'{"bid":{"gateway":"gw-2","slot":3,"spend":"2000000","sequence":1}}');
INSERT INTO "event" VALUES(12,'{"bid":{"gateway":"gw-3","slot":3,"spend":"3000000","sequence":1}}');
INSERT INTO "event" VALUES(13,'{"close":{"slot":2,"root":"a3629b0c700231dfdb85a885c00b4bce22f44dcf057b4b8977b82834d3ae6ee5"}}');
INSERT INTO "event" VALUES(14,'{"bid":{"gateway":"gw-1","slot":4,"spend":"1000001","sequence":2}}');
INSERT INTO "event" VALUES(15,'{"close":{"slot":3,"root":"9f7e9993de26b9bab01371f49fd528875a0bc8d5af7fdc662df07a0b6da1d7be"}}');
INSERT INTO "event" VALUES(16,'{"bid":{"gateway":"gw-2","slot":4,"spend":"2000001","sequence":2}}');
INSERT INTO "event" VALUES(17,'{"bid":{"gateway":"gw-3","slot":4,"spend":"3000001","sequence":2}}');
INSERT INTO "event" VALUES(18,'{"close":{"slot":4,"root":"dd4b93bf234443e87835446f4a122627a53a2287c9ba0be4aabfbf346259fe10"}}');
INSERT INTO "event" VALUES(19,'{"bid":{"gateway":"gw-1","slot":6,"spend":"1000002","sequence":3}}');
INSERT INTO "event" VALUES(20,'{"bid":{"gateway":"gw-2","slot":6,"spend":"2000002","sequence":3}}');
INSERT INTO "event" VALUES(21,'{"bid":{"gateway":"gw-3","slot":6,"spend":"3000002","sequence":3}}');
INSERT INTO "event" VALUES(22,'{"close":{"slot":5,"root":"ed4ad3609e8ea432edafd2c1d60db07cc32591f0601c7622b29d9cbbf731d8ea"}}');
INSERT INTO "event" VALUES(23,'{"close":{"slot":6,"root":"e09f5e81d78138dfa5a15e5114bb1166dd6e53bc12499d79926cb6f4220059e3"}}');
INSERT INTO "event" VALUES(24,'{"leave":{"gateway":"gw-3","at_s":1795770057}}');
INSERT INTO "event" VALUES(25,'{"close":{"slot":7,"root":"9eef58f39282a0c5a4758bef669cafb7bc7b2c568b1b1f3d41d430d1d74e1dbc"}}');
INSERT INTO "event" VALUES(26,'{"bid":{"gateway":"gw-1","slot":28,"spend":"1","sequence":1}}');
CREATE TABLE fairweir_market (version bigint not null);
INSERT INTO "fairweir_market" VALUES(1);
CREATE TABLE settlement (
    slot bigint primary key check (slot >= 0),
    gateways bigint not null check (gateways >= 0),
    spent bigint not null check (spent >= 0),
    received bigint not null check (received = spent),
    moved bigint not null check (moved = 0),
    credits bigint not null check (credits >= 0),
    root text not null
);
INSERT INTO "settlement" VALUES(0,0,0,0,0,0,'3dffe1de077ce3be9a07416d9c7afb907e9c3fc0cefc0a8ad1e359bf5e5cf3dc');
INSERT INTO "settlement" VALUES(1,0,0,0,0,0,'5095e3802ad172bb93d082fc78efa40d9c66c9b446d2b0e0d367a401b8263436');
INSERT INTO "settlement" VALUES(2,3,0,0,0,30000000,'a3629b0c700231dfdb85a885c00b4bce22f44dcf057b4b8977b82834d3ae6ee5');
INSERT INTO "settlement" VALUES(3,3,6000000,6000000,0,30000000,'9f7e9993de26b9bab01371f49fd528875a0bc8d5af7fdc662df07a0b6da1d7be');
INSERT INTO "settlement" VALUES(4,3,6000003,6000003,0,30000000,'dd4b93bf234443e87835446f4a122627a53a2287c9ba0be4aabfbf346259fe10');
INSERT INTO "settlement" VALUES(5,3,0,0,0,30000000,'ed4ad3609e8ea432edafd2c1d60db07cc32591f0601c7622b29d9cbbf731d8ea');
INSERT INTO "settlement" VALUES(6,3,6000006,6000006,0,30000000,'e09f5e81d78138dfa5a15e5114bb1166dd6e53bc12499d79926cb6f4220059e3');
INSERT INTO "settlement" VALUES(7,2,0,0,0,20000000,'9eef58f39282a0c5a4758bef669cafb7bc7b2c568b1b1f3d41d430d1d74e1dbc');
CREATE TABLE snapshot (
    number bigint primary key,
    book text not null
);
CREATE TABLE statement (
    slot bigint not null,
    seat bigint not null check (seat >= 0),
    gateway text not null,
    opening bigint not null check (opening >= 0),
    spent bigint not null check (spent >= 0 and spent <= opening),
    received bigint not null check (received >= 0),
    moved bigint not null,
    closing bigint not null check (closing >= 0),
    primary key (slot, gateway),
    check (closing = opening - spent + received + moved)
);
INSERT INTO "statement" VALUES(2,0,'gw-1',10000000,0,0,0,10000000);
INSERT INTO "statement" VALUES(2,1,'gw-2',10000000,0,0,0,10000000);
INSERT INTO "statement" VALUES(2,2,'gw-3',10000000,0,0,0,10000000);
INSERT INTO "statement" VALUES(3,0,'gw-1',10000000,1000000,2500000,0,11500000);
INSERT INTO "statement" VALUES(3,1,'gw-2',10000000,2000000,2000000,0,10000000);
INSERT INTO "statement" VALUES(3,2,'gw-3',10000000,3000000,1500000,0,8500000);
INSERT INTO "statement" VALUES(4,0,'gw-1',11500000,1000001,2500001,0,13000000);
INSERT INTO "statement" VALUES(4,1,'gw-2',10000000,2000001,2000001,0,10000000);
INSERT INTO "statement" VALUES(4,2,'gw-3',8500000,3000001,1500001,0,7000000);
INSERT INTO "statement" VALUES(5,0,'gw-1',13000000,0,0,0,13000000);
INSERT INTO "statement" VALUES(5,1,'gw-2',10000000,0,0,0,10000000);
INSERT INTO "statement" VALUES(5,2,'gw-3',7000000,0,0,0,7000000);
INSERT INTO "statement" VALUES(6,0,'gw-1',13000000,1000002,2500002,0,14500000);
INSERT INTO "statement" VALUES(6,1,'gw-2',10000000,2000002,2000002,0,10000000);
INSERT INTO "statement" VALUES(6,2,'gw-3',7000000,3000002,1500002,0,5500000);
INSERT INTO "statement" VALUES(7,0,'gw-1',12250000,0,0,0,12250000);
INSERT INTO "statement" VALUES(7,1,'gw-2',7750000,0,0,0,7750000);
COMMIT;
